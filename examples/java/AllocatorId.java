import java.io.IOException;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import java.nio.file.Path;
import java.util.List;
import org.hibernate.HibernateException;
import org.hibernate.annotations.IdGeneratorType;
import org.hibernate.engine.spi.SharedSessionContractImplementor;
import org.hibernate.id.IdentifierGenerator;

/** A key from the nodes, in Hibernate 6.2 or later: {@code @Id @AllocatorId private Long id;} */
@IdGeneratorType(AllocatorId.Generator.class)
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.FIELD, ElementType.METHOD})
public @interface AllocatorId {
  /** Draws keys in blocks, one object for each entity. */
  final class Generator implements IdentifierGenerator {
    private static final int BLOCK = 64;
    private static final long MAX_AGE = 1000; // milliseconds
    private static final long LEAP = 10; // by which the wall clock is ahead in a machine that was saved and resumed

    private static final Ids IDS =
        new Ids(
            List.of(System.getenv().getOrDefault("NODES", "http://127.0.0.1:8080").split(",")),
            System.getenv("TOKEN_FILE") == null ? null : Path.of(System.getenv("TOKEN_FILE")));

    private long[] held = {};
    private int next;
    private long drawn; // milliseconds of the monotonic clock
    private long wall; // milliseconds of the wall clock at the same time

    @Override
    public synchronized Object generate(SharedSessionContractImplementor session, Object entity) {
      if (next < held.length) {
        long id = held[next++]; // Clocks are read after an ID was taken: a copy that takes it too sees them ahead.
        long age = mono() - drawn;
        if (age < MAX_AGE && System.currentTimeMillis() - wall - age < LEAP) {
          return id;
        }
      }
      drawn = mono();
      wall = System.currentTimeMillis();
      try {
        held = IDS.draw(BLOCK);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new HibernateException("no key was drawn: the thread was interrupted", e);
      } catch (IOException e) {
        throw new HibernateException("no key was drawn: " + e.getMessage(), e);
      }
      next = 1;
      return held[0];
    }

    private static long mono() {
      return System.nanoTime() / 1_000_000;
    }
  }
}
