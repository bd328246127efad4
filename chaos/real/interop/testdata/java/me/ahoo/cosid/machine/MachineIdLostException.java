package me.ahoo.cosid.machine;

public class MachineIdLostException extends RuntimeException {
  public MachineIdLostException(String namespace, InstanceId instanceId, MachineState machineState) {}
}
