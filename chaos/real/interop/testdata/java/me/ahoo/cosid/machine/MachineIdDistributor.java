package me.ahoo.cosid.machine;

import java.time.Duration;

public interface MachineIdDistributor {
  static int totalMachineIds(int machineBit) {
    return 1 << machineBit;
  }

  MachineState distribute(String namespace, int machineBit, InstanceId instanceId, Duration safeGuardDuration);

  void revert(String namespace, InstanceId instanceId);

  void guard(String namespace, InstanceId instanceId, Duration safeGuardDuration);
}
