package me.ahoo.cosid.machine;

public class MachineState {
  private final int machineId;

  public MachineState(int machineId, long lastTimeStamp) {
    this.machineId = machineId;
  }

  public static MachineState of(int machineId) {
    return new MachineState(machineId, 0);
  }

  public int getMachineId() {
    return machineId;
  }
}
