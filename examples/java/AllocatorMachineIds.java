import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.time.Duration;
import me.ahoo.cosid.machine.InstanceId;
import me.ahoo.cosid.machine.MachineIdDistributor;
import me.ahoo.cosid.machine.MachineIdLostException;
import me.ahoo.cosid.machine.MachineIdOverflowException;
import me.ahoo.cosid.machine.MachineState;

/**
 * Gives CosId 3 the worker number of {@code allocator worker run -- java ...}, whose file ALLOCATOR_WORKER_FILE names.
 * In Spring return one from a {@code @Bean}.
 */
public final class AllocatorMachineIds implements MachineIdDistributor {
  private static final VarHandle LONGS = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final long MAGIC = 0x314B57434F4C4C41L; // ALLOCWK1

  private final ByteBuffer file;

  public AllocatorMachineIds(Path path) throws IOException {
    try (FileChannel channel = FileChannel.open(path)) {
      file = channel.map(FileChannel.MapMode.READ_ONLY, 0, 64);
    }
    if (field(0) != MAGIC) {
      throw new IOException(path + " is not the file of a worker");
    }
  }

  @Override
  public MachineState distribute(String namespace, int machineBit, InstanceId instanceId, Duration safeGuardDuration) {
    if (field(8) >= MachineIdDistributor.totalMachineIds(machineBit)) {
      throw new MachineIdOverflowException(MachineIdDistributor.totalMachineIds(machineBit), instanceId);
    }
    guard(namespace, instanceId, safeGuardDuration);
    return MachineState.of((int) field(8));
  }

  /** CosId asks once a minute, and only logs the exception: it is the runner that stops the program in time. */
  @Override
  public void guard(String namespace, InstanceId instanceId, Duration safeGuardDuration) {
    if (!permits(System.currentTimeMillis())) {
      throw new MachineIdLostException(namespace, instanceId, MachineState.of((int) field(8)));
    }
  }

  /** The runner gives the number back when the program has ended. */
  @Override
  public void revert(String namespace, InstanceId instanceId) {}

  /** Says whether an ID may be used whose own time is unixMs. Ask after it was made, and before it is used. */
  public boolean permits(long unixMs) {
    return field(24) <= unixMs && unixMs < field(32);
  }

  private long field(int at) {
    return (long) LONGS.getVolatile(file, at);
  }
}
