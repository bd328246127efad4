// A client of the HTTP API to copy. It needs .NET 8 or later and no packages. Make one object
// for the whole program: HttpClient keeps connections open, and all threads can use it. It
// follows Ids.java, which tests run; it is run by none.

using System.Net.Http.Headers;
using System.Net.Http.Json;
using System.Text.RegularExpressions;

/// <summary>No ID was issued. Final: no other node and no later time helps.</summary>
public sealed class Refused(string reason, string? detail, TimeSpan? retryAfter, bool final)
    : Exception($"{reason}: {detail}")
{
    public string Reason { get; } = reason;
    public TimeSpan? RetryAfter { get; } = retryAfter;
    public bool Final { get; } = final;
}

public sealed class Ids(string[] nodes, string? tokenFile = null)
{
    private sealed record Issued(string[] Ids);
    private sealed record Problem(string? Reason, string? Detail);

    private readonly string[] nodes = Checked(nodes);
    private readonly HttpClient http = new() { Timeout = TimeSpan.FromSeconds(2) }; // of one attempt
    private long last; // the greatest ID so far
    private int first; // the node to ask first: the last one that served

    private static string[] Checked(string[] nodes)
    {
        if (nodes.Length == 0) throw new ArgumentException("nodes is empty: give URLs such as http://127.0.0.1:8080");
        foreach (var node in nodes)
            if (!Regex.IsMatch(node, @"^https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]{1,5})?\z"))
                throw new ArgumentException($"node \"{node}\": write http://host:port or https://host:port");
        return nodes;
    }

    /// <summary>Returns 1 to 10,000 IDs in rising order, all greater than those of calls that ended before.</summary>
    public async Task<long[]> DrawAsync(int count = 1, CancellationToken cancel = default)
    {
        var deadline = DateTime.UtcNow.AddSeconds(10);
        while (true)
        {
            Exception? failure = null;
            var wait = TimeSpan.FromMinutes(1);
            for (int i = 0, from = first; i < nodes.Length; i++)
            {
                var node = (from + i) % nodes.Length;
                try
                {
                    var ids = await AskAsync(nodes[node], count, cancel);
                    for (long seen; (seen = Interlocked.Read(ref last)) < ids[^1];)
                        Interlocked.CompareExchange(ref last, ids[^1], seen);
                    first = node;
                    return ids;
                }
                catch (Exception e) when (e is HttpRequestException or Refused { Final: false }
                                          || e is TaskCanceledException && !cancel.IsCancellationRequested)
                {
                    failure = e;
                    var delay = (e as Refused)?.RetryAfter ?? TimeSpan.FromSeconds(1);
                    wait = delay < wait ? delay : wait;
                }
            }
            if (DateTime.UtcNow + wait >= deadline) throw failure!;
            await Task.Delay(wait, cancel);
        }
    }

    private async Task<long[]> AskAsync(string node, int count, CancellationToken cancel)
    {
        using var request = new HttpRequestMessage(HttpMethod.Post,
            $"{node}/v1/ids?as=int&count={count}&after={Interlocked.Read(ref last)}");
        if (tokenFile is not null)
            request.Headers.Authorization = new AuthenticationHeaderValue("Bearer",
                (await File.ReadAllTextAsync(tokenFile, cancel)).Trim());
        using var answer = await http.SendAsync(request, cancel);
        if (answer.IsSuccessStatusCode)
        {
            var ids = Array.ConvertAll((await answer.Content.ReadFromJsonAsync<Issued>(cancel))!.Ids, long.Parse);
            if (ids.Length != count)
                throw new HttpRequestException($"{ids.Length} IDs came where {count} were asked for");
            return ids;
        }
        Problem? problem = null;
        if (answer.Content.Headers.ContentType?.MediaType == "application/problem+json") // else a proxy's
            problem = await answer.Content.ReadFromJsonAsync<Problem>(cancel);
        var status = (int)answer.StatusCode;
        // Another node or a later time helps against 409 (AFTER_TOO_FAR), 429 and 5xx.
        throw new Refused(problem?.Reason ?? $"HTTP {status}", problem?.Detail,
            answer.Headers.RetryAfter?.Delta, status < 500 && status is not (409 or 429));
    }
}
