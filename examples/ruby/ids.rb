# Draws IDs from an allocator cluster, over HTTP. It needs nothing but Ruby 3.0 or later.
# Prints some: ruby ids.rb 1000
require "json"
require "net/http"
require "openssl"

# One for each thread: it keeps a connection to each node open. A forked child opens its own.
class Allocator
  # No ID was issued: reason says why, retry_after (seconds) when the same request can succeed.
  class Refused < StandardError
    attr_reader :reason, :retry_after, :final

    def initialize(reason, detail, retry_after = nil, final = false)
      super("#{reason}: #{detail}")
      @reason, @retry_after, @final = reason, retry_after, final
    end
  end

  AWAY = [SystemCallError, SocketError, IOError, Timeout::Error, OpenSSL::SSL::SSLError, Net::ProtocolError, Net::HTTPBadResponse].freeze

  def initialize(nodes, token_file: nil, ca_file: nil, timeout: 10, attempt_timeout: 2)
    raise ArgumentError, "nodes is empty: give URLs such as http://127.0.0.1:8080" if nodes.empty?

    bad = nodes.grep_v(%r{\Ahttps?://(\[[\h:.]+\]|[\w.-]+)(:\d{1,5})?/?\z}).first
    raise ArgumentError, "node #{bad.inspect}: write http://host:port or https://host:port" if bad

    @token_file, @timeout, @last = token_file, timeout, 0
    @urls, @ca_file, @attempt_timeout = nodes.map { |url| URI(url) }, ca_file, attempt_timeout
    connect
  end

  # Returns 1 to 10,000 IDs in rising order, all greater than those it returned before.
  def draw(count = 1)
    connect if @process != Process.pid # else parent and child read each other's answers
    deadline = now + @timeout
    loop do
      wait = Float::INFINITY
      failure = nil
      @nodes.dup.each do |node|
        ids = ask(node, count)
        @nodes = [node] + (@nodes - [node]) # it is asked first from now on
        @last = ids.last
        return ids
      rescue Refused, *AWAY => e
        node.finish if node.started? && !e.is_a?(Refused)
        raise if e.is_a?(Refused) && e.final # no node would serve this request
        raise if now > deadline

        failure = e
        wait = [wait, (e.retry_after if e.is_a?(Refused)) || 1].min
      end
      raise failure if now + wait >= deadline

      sleep wait
    end
  end

  private

  # It leaves what is open as it is: to finish a TLS connection would end the parent's.
  def connect
    @process = Process.pid
    @nodes = @urls.map do |uri|
      http = Net::HTTP.new(uri.hostname, uri.port)
      http.use_ssl = uri.scheme == "https"
      http.ca_file = @ca_file if @ca_file
      http.open_timeout = http.read_timeout = http.write_timeout = @attempt_timeout
      http.keep_alive_timeout = 60
      http
    end
  end

  def ask(node, count)
    node.start unless node.started?
    request = Net::HTTP::Post.new("/v1/ids?as=int&count=#{count}&after=#{@last}")
    request["Authorization"] = "Bearer #{File.read(@token_file).strip}" if @token_file
    answer = node.request(request)
    if answer.is_a?(Net::HTTPOK)
      ids = JSON.parse(answer.body)["ids"].map { |text| Integer(text, 10) }
      raise IOError, "#{ids.size} IDs came where #{count} were asked for" if ids.size != count

      return ids
    end
    problem = JSON.parse(answer.body) rescue {} # a proxy's answer has no reason
    code = answer.code.to_i
    # Another node or a later time helps against 409 (AFTER_TOO_FAR), 429 and 5xx.
    raise Refused.new(problem["reason"] || "HTTP #{code}", problem["detail"] || answer.message,
                      answer["Retry-After"]&.to_i, code < 500 && ![409, 429].include?(code))
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

if __FILE__ == $PROGRAM_NAME
  allocator = Allocator.new(ENV.fetch("NODES", "http://127.0.0.1:8080").split(","),
                            token_file: ENV["TOKEN_FILE"], ca_file: ENV["CA_FILE"])
  left = Integer(ARGV.fetch(0, "10"))
  while left > 0
    ids = allocator.draw([left, 1000].min)
    puts ids
    left -= ids.size
  end
end
