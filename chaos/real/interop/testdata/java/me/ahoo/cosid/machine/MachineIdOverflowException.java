package me.ahoo.cosid.machine;

public class MachineIdOverflowException extends RuntimeException {
  public MachineIdOverflowException(int totalMachineIds, InstanceId instanceId) {}
}
