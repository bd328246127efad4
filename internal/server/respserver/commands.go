package respserver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/resp"
	"github.com/flakelease/allocator/internal/text"
)

// redisVersion is the version of Redis in HELLO and INFO. Clients choose their commands
// by it. INFO has the version of this program too.
const redisVersion = "7.0.0"

// command is a command of this listener.
type command struct {
	name     string // in upper case
	lower    string // in lower case, for errors and COMMAND
	min, max int    // number of arguments, the name included; max 0: any
	surface  server.Surface
	open     bool // for unauthenticated clients too
	reads    bool // requires the scope read
	keyed    bool // its first argument looks like a key
	run      func(c *conn, args [][]byte)
	// issues is run for commands that issue IDs. It returns false if it has done nothing
	// yet, since something else has to be done first, which c.need says.
	issues func(c *conn, args [][]byte) bool
	use    string // one line
}

// accepts reports whether the command may have n arguments, the name included.
func (cmd *command) accepts(n int) bool { return n >= cmd.min && (cmd.max == 0 || n <= cmd.max) }

var commands map[string]*command

// listed has the commands in the order of COMMAND.
var listed []*command

func init() {
	listed = []*command{
		{name: "ID.NEXT", min: 1, max: 7, surface: server.RESPIDs, issues: (*conn).next, use: nextUse},
		{
			name:    "HGET",
			min:     3,
			max:     3,
			surface: server.RESPIDs,
			keyed:   true,
			issues:  (*conn).hget,
			use:     "HGET id next|flake|int|ulid|uuid",
		},
		{
			name:    "ID.DECODE",
			min:     2,
			max:     4,
			surface: server.RESPDecode,
			reads:   true,
			run:     (*conn).decode,
			use:     "ID.DECODE id [KIND auto|flake|int|hex|ulid|uuid]",
		},
		{name: "ID.STATUS", min: 1, max: 1, reads: true, run: (*conn).status, use: "ID.STATUS"},
		{name: "ID.WATERMARK", min: 1, max: 1, reads: true, run: (*conn).watermark, use: "ID.WATERMARK"},
		{name: "AUTH", min: 2, max: 3, open: true, run: (*conn).auth, use: "AUTH [user] token"},
		{
			name: "HELLO",
			min:  1,
			max:  7,
			open: true,
			run:  (*conn).hello,
			use:  "HELLO [2|3 [AUTH user token] [SETNAME name]]",
		},
		{name: "CLIENT", min: 2, run: (*conn).client, use: "CLIENT ID|INFO|GETNAME|SETNAME|SETINFO|…"},
		{name: "COMMAND", min: 1, run: (*conn).command, use: "COMMAND [COUNT|DOCS|INFO|LIST]"},
		{name: "INFO", min: 1, run: (*conn).info, use: "INFO"},
		{name: "PING", min: 1, max: 2, run: (*conn).ping, use: "PING [message]"},
		{name: "ECHO", min: 2, max: 2, run: (*conn).echo, use: "ECHO message"},
		{name: "SELECT", min: 2, max: 2, run: (*conn).selectDB, use: "SELECT 0"},
		{name: "RESET", min: 1, max: 1, open: true, run: (*conn).doReset, use: "RESET"},
		{name: "QUIT", min: 1, open: true, run: (*conn).doQuit, use: "QUIT"},
	}
	commands = make(map[string]*command, len(listed))
	for _, cmd := range listed {
		cmd.lower = strings.ToLower(cmd.name)
		if cmd.surface != server.RESPIDs && cmd.surface != server.RESPDecode {
			cmd.surface = server.RESPOther
		}
		commands[cmd.name] = cmd
	}
}

// lookup returns the command of a name in any case, or nil.
func lookup(name []byte) *command {
	var upper [16]byte
	if len(name) > len(upper) {
		return nil
	}
	for i, c := range name {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	return commands[string(upper[:len(name)])]
}

// multiHint names the option that most people meet: pipelines of redis-py are
// transactions by default.
const multiHint = "is not supported: an issued ID cannot be rolled back. Send the commands as a pipeline without " +
	"MULTI; in redis-py, pipeline(transaction=False)"

// hints are the errors for commands of Redis that people try, or that clients send by
// themselves.
var hints = map[string]string{
	"INCR": "is not supported: its answer is an integer, and many clients lose digits of an ID in an integer. " +
		"Use ID.NEXT, or HGET id next",
	"INCRBY": "is not supported: its answer is an integer, and many clients lose digits of an ID in an integer. " +
		"Use ID.NEXT COUNT n",
	"GET": "is not supported: clients may answer it from a cache, and an ID from a cache is a duplicate. Use " +
		"ID.NEXT, or HGET id next",
	"MULTI":   multiHint,
	"EXEC":    multiHint,
	"DISCARD": "without MULTI",
	"CLUSTER": "is not supported: cluster support is disabled. Connect to one node, or to a load balancer in " +
		"front of several",
	"SUBSCRIBE": "is not supported: there are no channels. Use ID.NEXT",
	"MONITOR":   "is not supported: it would show the IDs of other clients. Use INFO",
}

// unknown answers an unknown command.
func (c *conn) unknown(args [][]byte) {
	if lookup := strings.ToUpper(string(args[0][:min(len(args[0]), 16)])); hints[lookup] != "" {
		code := "ERR"
		if lookup == "EXEC" { // clients then report the error of MULTI, which explains it
			code = "EXECABORT"
		}
		c.out = resp.AppendError(c.out, code, lookup+" "+hints[lookup])
		return
	}
	names := make([]string, len(listed))
	for i, cmd := range listed {
		names[i] = cmd.name
	}
	use := "this is allocator, not Redis. Use ID.NEXT, HGET id next or ID.DECODE id"
	if meant := commands[text.Nearest(strings.ToUpper(string(args[0][:min(len(args[0]), 16)])), names)]; meant != nil {
		use = "did you mean " + meant.use + "?"
	}
	c.out = resp.AppendError(c.out, "ERR", fmt.Sprintf("unknown command '%.128s': %s", args[0], use))
}

func (c *conn) ok() { c.out = append(c.out, "+OK\r\n"...) }

func (c *conn) ping(args [][]byte) {
	if len(args) == 1 {
		c.out = append(c.out, "+PONG\r\n"...)
		return
	}
	c.echo(args)
}

func (c *conn) echo(args [][]byte) { c.out = resp.AppendBulk(c.out, args[1]) }

func (c *conn) selectDB(args [][]byte) {
	switch db, err := strconv.Atoi(string(args[1])); {
	case err != nil:
		c.out = resp.AppendError(c.out, "ERR", "value is not an integer or out of range")
	case db != 0:
		c.out = resp.AppendError(c.out, "ERR", "DB index is out of range: use 0")
	default:
		c.ok()
	}
}

func (c *conn) doReset([][]byte) {
	c.reset()
	c.out = resp.AppendSimple(c.out, "RESET")
}

func (c *conn) doQuit([][]byte) {
	c.ok()
	c.quit = true
}

// auth answers AUTH token and AUTH user token. The user is ignored, since the token
// identifies the client.
func (c *conn) auth(args [][]byte) {
	if c.login(args[len(args)-1]) {
		c.ok()
	}
}

// login identifies the caller by a token. For an unknown token it answers with the refusal and leaves the caller
// unchanged. A node without tokens accepts each, so that clients can have theirs before nodes ask. So does Redis for
// AUTH default PASSWORD; it refuses AUTH PASSWORD then, and clients that send it cannot connect.
func (c *conn) login(token []byte) bool {
	if !c.s.service.Guard().NeedsToken() {
		return true
	}
	with := c.creds
	with.Token = string(token)
	caller, refusal := c.s.identify(with)
	if refusal != nil {
		c.quota.Charge(quota.CostFailure)
		c.out = appendRefusal(c.out, "WRONGPASS", c.s.issuer.Refused(refusal))
		c.quit = refusal.Reason == node.RateLimited // too many wrong tokens: a new connection costs more than a command
		return false
	}
	c.caller, c.unauthenticated = caller, nil
	return true
}

// hello answers HELLO. It changes nothing if any part of it is wrong.
func (c *conn) hello(args [][]byte) {
	proto := c.proto
	if len(args) > 1 {
		v, err := strconv.Atoi(string(args[1]))
		switch {
		case err != nil:
			c.out = resp.AppendError(c.out, "ERR", "Protocol version is not an integer or out of range")
			return
		case v != 2 && v != 3:
			c.out = resp.AppendError(c.out, "NOPROTO", "unsupported protocol version: use 2 or 3")
			return
		}
		proto = v
	}
	var token, name []byte
	for i := 2; i < len(args); {
		switch {
		case resp.EqualFold(args[i], "AUTH") && i+2 < len(args):
			token = args[i+2]
			i += 3
		case resp.EqualFold(args[i], "SETNAME") && i+1 < len(args):
			name = args[i+1]
			i += 2
		default:
			c.out = resp.AppendError(c.out, "ERR", fmt.Sprintf("Syntax error in HELLO option '%.64s'", args[i]))
			return
		}
	}
	if name != nil && !validName(name) {
		c.out = resp.AppendError(c.out, "ERR", badName)
		return
	}
	if token != nil && !c.login(token) {
		return
	}
	if c.unauthenticated != nil {
		c.out = resp.AppendError(c.out, "NOAUTH",
			"HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "+
				"<token> option can be used to authenticate the client and select the RESP protocol version at the "+
				"same time")
		return
	}
	c.proto = proto
	if name != nil {
		c.name = string(name)
	}
	c.out = resp.AppendMap(c.out, 7, c.proto)
	for _, kv := range [][2]string{{"server", "allocator"}, {"version", redisVersion}} {
		c.out = resp.AppendBulk(resp.AppendBulk(c.out, kv[0]), kv[1])
	}
	c.out = resp.AppendInt(resp.AppendBulk(c.out, "proto"), int64(c.proto))
	c.out = resp.AppendInt(resp.AppendBulk(c.out, "id"), c.id)
	for _, kv := range [][2]string{{"mode", "standalone"}, {"role", "master"}} {
		c.out = resp.AppendBulk(resp.AppendBulk(c.out, kv[0]), kv[1])
	}
	c.out = resp.AppendArray(resp.AppendBulk(c.out, "modules"), 0)
}

const (
	maxClientName = 128
	badName       = "Client names cannot contain spaces, newlines or special characters, and have at most 128"
)

func validName(name []byte) bool {
	for _, c := range name {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(name) <= maxClientName
}

// client answers CLIENT. Settings without an effect here, such as tracking, are refused;
// clients expect that of older servers.
func (c *conn) client(args [][]byte) {
	sub, rest := strings.ToUpper(string(args[1])), args[2:]
	hasArgs := func(n int) bool {
		if len(rest) == n {
			return true
		}
		c.out = resp.AppendError(c.out, "ERR",
			"wrong number of arguments for 'client|"+strings.ToLower(sub)+"' command")
		return false
	}
	switch sub {
	case "ID":
		if hasArgs(0) {
			c.out = resp.AppendInt(c.out, c.id)
		}
	case "GETNAME":
		if !hasArgs(0) {
			return
		}
		if c.name == "" {
			c.out = resp.AppendNull(c.out, c.proto)
			return
		}
		c.out = resp.AppendBulk(c.out, c.name)
	case "SETNAME":
		if !hasArgs(1) {
			return
		}
		if !validName(rest[0]) {
			c.out = resp.AppendError(c.out, "ERR", badName)
			return
		}
		c.name = string(rest[0])
		c.ok()
	case "SETINFO": // name and version of the library: accepted and not kept
		if hasArgs(2) {
			c.ok()
		}
	case "INFO", "LIST": // this connection only: the others are not shown to clients
		c.out = resp.AppendBulk(c.out, fmt.Sprintf("id=%d addr=%s laddr=%s name=%s db=0 resp=%d\n",
			c.id, c.remote, c.local, c.name, c.proto))
	case "NO-EVICT", "NO-TOUCH":
		if hasArgs(1) {
			c.ok()
		}
	case "REPLY":
		if len(rest) == 1 && resp.EqualFold(rest[0], "ON") {
			c.ok()
			return
		}
		c.out = resp.AppendError(c.out, "ERR", "CLIENT REPLY is always ON: an ID without a reply would be lost")
	case "TRACKING":
		if len(rest) == 1 && resp.EqualFold(rest[0], "OFF") {
			c.ok()
			return
		}
		c.out = resp.AppendError(c.out, "ERR", "CLIENT TRACKING is always OFF: no answer may be cached")
	default:
		c.out = resp.AppendError(c.out, "ERR",
			fmt.Sprintf("unknown subcommand '%.64s'. Try CLIENT ID, INFO, GETNAME, SETNAME, SETINFO.", args[1]))
	}
}

// command answers COMMAND, which redis-cli and some clients send at the start.
func (c *conn) command(args [][]byte) {
	if len(args) == 1 {
		c.out = resp.AppendArray(c.out, len(listed))
		for _, cmd := range listed {
			c.describe(cmd)
		}
		return
	}
	chosen := listed
	if len(args) > 2 {
		chosen = make([]*command, len(args)-2)
		for i, name := range args[2:] {
			chosen[i] = lookup(name)
		}
	}
	switch {
	case resp.EqualFold(args[1], "COUNT"):
		c.out = resp.AppendInt(c.out, int64(len(listed)))
	case resp.EqualFold(args[1], "LIST"):
		c.out = resp.AppendArray(c.out, len(listed))
		for _, cmd := range listed {
			c.out = resp.AppendBulk(c.out, cmd.lower)
		}
	case resp.EqualFold(args[1], "INFO"):
		c.out = resp.AppendArray(c.out, len(chosen))
		for _, cmd := range chosen {
			if cmd == nil {
				c.out = resp.AppendNull(c.out, c.proto)
				continue
			}
			c.describe(cmd)
		}
	case resp.EqualFold(args[1], "DOCS"):
		known := chosen[:0:0]
		for _, cmd := range chosen {
			if cmd != nil {
				known = append(known, cmd)
			}
		}
		c.out = resp.AppendMap(c.out, len(known), c.proto)
		for _, cmd := range known {
			c.out = resp.AppendMap(resp.AppendBulk(c.out, cmd.lower), 3, c.proto)
			for _, kv := range [][2]string{{"summary", cmd.use}, {"since", redisVersion}, {"group", "connection"}} {
				c.out = resp.AppendBulk(resp.AppendBulk(c.out, kv[0]), kv[1])
			}
		}
	default:
		c.out = resp.AppendError(c.out, "ERR",
			fmt.Sprintf("unknown subcommand '%.64s'. Try COMMAND COUNT, DOCS, INFO, LIST.", args[1]))
	}
}

// describe appends the entry of a command in COMMAND: name, number of arguments (if
// negative, a minimum), flags, and the positions of keys.
func (c *conn) describe(cmd *command) {
	arity, key := int64(cmd.min), int64(0)
	if cmd.max != cmd.min {
		arity = -arity
	}
	if cmd.keyed {
		key = 1
	}
	c.out = resp.AppendArray(c.out, 6)
	c.out = resp.AppendBulk(c.out, cmd.lower)
	c.out = resp.AppendInt(c.out, arity)
	flags := []string{"fast"}
	if cmd.surface == server.RESPIDs {
		flags = []string{"write", "fast"} // so that no client sends it to a replica
	}
	c.out = resp.AppendArray(c.out, len(flags))
	for _, f := range flags {
		c.out = resp.AppendSimple(c.out, f)
	}
	for range 3 {
		c.out = resp.AppendInt(c.out, key)
	}
}

// info answers INFO: the fields by which clients check that a server is ready, and for
// callers with the scope read the state of the node.
func (c *conn) info([][]byte) {
	st := c.s.issuer.Stats()
	sid, refusing := "-1", ""
	if st.Holding {
		sid = strconv.Itoa(int(st.SID))
	}
	if r := c.s.issuer.Ready(); r != nil {
		refusing = r.Reason.String()
	}
	var b strings.Builder
	line := func(key, value string) { fmt.Fprintf(&b, "%s:%s\r\n", key, value) }
	b.WriteString("# Server\r\n")
	line("redis_version", redisVersion)
	line("redis_mode", "standalone")
	line("allocator_version", c.s.cfg.Version)
	b.WriteString("\r\n# Clients\r\n")
	line("connected_clients", strconv.Itoa(c.s.Connections()))
	line("maxclients", strconv.Itoa(c.s.cfg.MaxConnections))
	b.WriteString("\r\n# Persistence\r\n")
	line("loading", "0")
	b.WriteString("\r\n# Replication\r\n")
	line("role", "master")
	line("connected_slaves", "0")
	if c.mayRead() { // as for ID.STATUS
		b.WriteString("\r\n# Allocator\r\n")
		line("node", st.Name)
		line("sid", sid)
		line("refusing", refusing)
		line("ids_issued", strconv.FormatInt(st.Issued, 10))
	}
	c.out = resp.AppendBulk(c.out, b.String())
}
