import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import me.ahoo.cosid.machine.InstanceId;
import me.ahoo.cosid.machine.MachineIdLostException;
import me.ahoo.cosid.machine.MachineIdOverflowException;

/** Uses the classes of examples/java. What is beside it has the signatures of Hibernate 6 and CosId 3, and no more. */
public final class Main {
  public static void main(String[] args) throws Exception {
    AllocatorId.Generator generator = new AllocatorId.Generator();
    for (int i = 0; i < 200; i++) {
      System.out.println(generator.generate(null, null));
    }
    System.out.println("drawn again: " + drawsAgain(generator, "wall") + " " + drawsAgain(generator, "drawn"));

    InstanceId instance = new InstanceId();
    Path file = Path.of(System.getenv("ALLOCATOR_WORKER_FILE"));
    AllocatorMachineIds machine = new AllocatorMachineIds(file);
    System.out.println("machine " + machine.distribute("orders", 10, instance, null).getMachineId());
    machine.revert("orders", instance);
    System.out.println("permits " + machine.permits(System.currentTimeMillis()) + " " + machine.permits(0) + " "
        + machine.permits(Long.MAX_VALUE));
    try {
      machine.distribute("orders", 9, instance, null);
    } catch (MachineIdOverflowException e) {
      System.out.println("too large for 9 bits");
    }
    byte[] over = Files.readAllBytes(file);
    Arrays.fill(over, 32, 40, (byte) 0);
    machine = new AllocatorMachineIds(Files.write(Path.of(args[0]), over));
    try {
      machine.guard("orders", instance, null);
    } catch (MachineIdLostException e) {
      System.out.println("lost");
    }
  }

  /** Says whether a key is not one of those held once a clock was set forward by a minute. */
  private static boolean drawsAgain(AllocatorId.Generator generator, String clock) throws Exception {
    generator.generate(null, null);
    Field at = AllocatorId.Generator.class.getDeclaredField(clock);
    Field next = AllocatorId.Generator.class.getDeclaredField("next");
    at.setAccessible(true);
    next.setAccessible(true);
    at.setLong(generator, at.getLong(generator) - 60_000);
    next.setInt(generator, 9);
    generator.generate(null, null);
    return next.getInt(generator) == 1;
  }
}
