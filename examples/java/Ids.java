import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Draws IDs from an allocator cluster, over HTTP. It needs nothing but Java 11 or later, is safe for
 * concurrent use, and keeps its connections open: make one for the whole program.
 *
 * <p>Prints some: java Ids.java 1000
 */
public final class Ids {
  /** No ID was issued: {@code reason} says why, {@code retryAfter} (seconds, 0: unknown) when the same request can succeed. */
  public static final class Refused extends IOException {
    public final String reason;
    public final int retryAfter;
    final boolean last; // no other node would serve the request, and no later time helps

    Refused(HttpResponse<String> answer) {
      super(member(answer, "reason", "HTTP " + answer.statusCode()) + ": " + member(answer, "detail", ""));
      reason = member(answer, "reason", "HTTP " + answer.statusCode());
      retryAfter = (int) answer.headers().firstValueAsLong("Retry-After").orElse(0);
      // Another node or a later time helps against 409 (AFTER_TOO_FAR), 429 and 5xx.
      last = answer.statusCode() < 500 && answer.statusCode() != 409 && answer.statusCode() != 429;
    }

    // Use the JSON library that the program has; the JDK has none.
    private static String member(HttpResponse<String> answer, String name, String otherwise) {
      Matcher m = Pattern.compile('"' + name + "\":\"((?:[^\"\\\\]|\\\\.)*)\"").matcher(answer.body());
      return m.find() ? m.group(1) : otherwise;
    }
  }

  private static final Duration TIMEOUT = Duration.ofSeconds(10);
  private static final Duration ATTEMPT_TIMEOUT = Duration.ofSeconds(2);

  private final HttpClient http =
      HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(ATTEMPT_TIMEOUT).build();
  private final List<String> nodes;
  private final Path tokenFile; // null: none
  private final AtomicInteger first = new AtomicInteger(); // the node to ask first: the last one that served
  private final AtomicLong last = new AtomicLong(); // the greatest ID so far

  public Ids(List<String> nodes, Path tokenFile) {
    if (nodes.isEmpty()) {
      throw new IllegalArgumentException("nodes is empty: give URLs such as http://127.0.0.1:8080");
    }
    for (String node : nodes) {
      if (!node.matches("https?://(\\[[0-9A-Fa-f:.]+\\]|[\\w.-]+)(:\\d{1,5})?")) {
        throw new IllegalArgumentException("node \"" + node + "\": write http://host:port or https://host:port");
      }
    }
    this.nodes = List.copyOf(nodes);
    this.tokenFile = tokenFile;
  }

  /** Returns 1 to 10,000 IDs in rising order, all greater than those of calls that ended before. */
  public long[] draw(int count) throws IOException, InterruptedException {
    long deadline = System.nanoTime() + TIMEOUT.toNanos();
    while (true) {
      IOException failure = null;
      long wait = 60; // seconds
      for (int i = 0, from = first.get(); i < nodes.size(); i++) {
        int node = (from + i) % nodes.size();
        try {
          long[] ids = ask(nodes.get(node), count);
          last.accumulateAndGet(ids[ids.length - 1], Math::max);
          first.set(node);
          return ids;
        } catch (Refused e) {
          if (e.last) {
            throw e;
          }
          failure = e;
          wait = Math.min(wait, Math.max(1, e.retryAfter));
        } catch (IOException e) { // unreachable, or no answer in time
          failure = e;
          wait = 1;
        }
        if (System.nanoTime() - deadline > 0) {
          throw failure;
        }
      }
      if (System.nanoTime() + Duration.ofSeconds(wait).toNanos() - deadline >= 0) {
        throw failure;
      }
      Thread.sleep(Duration.ofSeconds(wait).toMillis());
    }
  }

  private long[] ask(String node, int count) throws IOException, InterruptedException {
    HttpRequest.Builder request =
        HttpRequest.newBuilder(URI.create(node + "/v1/ids?as=int&count=" + count + "&after=" + last))
            .header("Accept", "text/plain") // an ID a line
            .POST(HttpRequest.BodyPublishers.noBody());
    if (tokenFile != null) {
      request.header("Authorization", "Bearer " + Files.readString(tokenFile).strip());
    }
    CompletableFuture<HttpResponse<String>> call = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString());
    HttpResponse<String> answer;
    try {
      answer = call.get(ATTEMPT_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS); // a timeout of the request ends with its headers
    } catch (TimeoutException e) {
      call.cancel(true);
      throw new IOException(node + " does not answer", e);
    } catch (ExecutionException e) {
      throw new IOException(node + ": " + e.getCause(), e.getCause());
    }
    if (answer.statusCode() != 200) {
      throw new Refused(answer);
    }
    long[] ids = answer.body().lines().mapToLong(Long::parseLong).toArray();
    if (ids.length != count) {
      throw new IOException(node + ": " + ids.length + " IDs came where " + count + " were asked for");
    }
    return ids;
  }

  public static void main(String[] args) throws Exception {
    String token = System.getenv("TOKEN_FILE");
    Ids ids =
        new Ids(
            List.of(System.getenv().getOrDefault("NODES", "http://127.0.0.1:8080").split(",")),
            token == null ? null : Path.of(token));
    for (int left = args.length > 0 ? Integer.parseInt(args[0]) : 10; left > 0; ) {
      long[] block = ids.draw(Math.min(left, 1000));
      for (long id : block) {
        System.out.println(id);
      }
      left -= block.length;
    }
  }
}
