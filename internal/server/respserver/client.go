package respserver

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/internal/server"
)

// redisVersion is the version of Redis whose handshake is answered here. Clients
// read it to know what they may send; INFO has our own beside it.
const redisVersion = "7.0.0"

// command is one that we have.
type command struct {
	name        string // in upper case
	lower       string // as errors and COMMAND have it
	least, most int    // words, the name included; most 0: any number
	surface     server.Surface
	open        bool // to callers who have shown no token
	reads       bool // needs the scope read
	keyed       bool // its first argument looks like a key
	run         func(c *conn, args [][]byte)
	use         string // one line
}

var commands map[string]*command

// listed are the commands in the order in which COMMAND shows them.
var listed []*command

func init() {
	listed = []*command{
		{name: "ID.NEXT", least: 1, most: 7, surface: server.RESPIDs, run: (*conn).next, use: nextUse},
		{name: "HGET", least: 3, most: 3, surface: server.RESPIDs, keyed: true, run: (*conn).hget, use: "HGET id next|flake|int|ulid|uuid"},
		{name: "ID.DECODE", least: 2, most: 4, surface: server.RESPDecode, reads: true, run: (*conn).decode, use: "ID.DECODE id [KIND auto|flake|int|hex|ulid|uuid]"},
		{name: "ID.STATUS", least: 1, most: 1, reads: true, run: (*conn).status, use: "ID.STATUS"},
		{name: "AUTH", least: 2, most: 3, open: true, run: (*conn).auth, use: "AUTH [user] token"},
		{name: "HELLO", least: 1, most: 7, open: true, run: (*conn).hello, use: "HELLO [2|3 [AUTH user token] [SETNAME name]]"},
		{name: "CLIENT", least: 2, run: (*conn).client, use: "CLIENT ID|INFO|GETNAME|SETNAME|SETINFO|…"},
		{name: "COMMAND", least: 1, run: (*conn).command, use: "COMMAND [COUNT|DOCS|INFO|LIST]"},
		{name: "INFO", least: 1, run: (*conn).info, use: "INFO"},
		{name: "PING", least: 1, most: 2, run: (*conn).ping, use: "PING [message]"},
		{name: "ECHO", least: 2, most: 2, run: (*conn).echo, use: "ECHO message"},
		{name: "SELECT", least: 2, most: 2, run: (*conn).selectDB, use: "SELECT 0"},
		{name: "RESET", least: 1, most: 1, open: true, run: (*conn).doReset, use: "RESET"},
		{name: "QUIT", least: 1, open: true, run: (*conn).doQuit, use: "QUIT"},
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

// hints are for commands of Redis that people try, or that clients send on their
// own and whose refusal has to make sense.
var hints = map[string]string{
	"INCR":      "is not offered: its answer is an integer, and clients lose digits of an ID in one. Use ID.NEXT, or HGET id next",
	"INCRBY":    "is not offered: its answer is an integer, and clients lose digits of an ID in one. Use ID.NEXT COUNT n",
	"GET":       "is not offered: clients may answer it from a cache, and an ID from a cache is a duplicate. Use ID.NEXT, or HGET id next",
	"MULTI":     "is not offered: an ID issued cannot be taken back. Send the commands as a pipeline",
	"EXEC":      "without MULTI",
	"DISCARD":   "without MULTI",
	"CLUSTER":   "is not offered: cluster support is disabled. Connect to one node, or to a load balancer in front of several",
	"SUBSCRIBE": "is not offered: there is nothing to subscribe to",
	"MONITOR":   "is not offered: it would show other clients' IDs",
}

// unknown answers a command that we do not have.
func (c *conn) unknown(args [][]byte) {
	if lookup := strings.ToUpper(string(args[0][:min(len(args[0]), 16)])); hints[lookup] != "" {
		c.out = appendError(c.out, "ERR", lookup+" "+hints[lookup])
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "unknown command '%.128s', with args beginning with: ", args[0])
	for _, a := range args[1:] {
		if b.Len() > 256 {
			break
		}
		fmt.Fprintf(&b, "'%.64s' ", a)
	}
	c.out = appendError(c.out, "ERR", b.String())
}

func (c *conn) ok() { c.out = append(c.out, "+OK\r\n"...) }

func (c *conn) ping(args [][]byte) {
	if len(args) == 1 {
		c.out = append(c.out, "+PONG\r\n"...)
		return
	}
	c.echo(args)
}

func (c *conn) echo(args [][]byte) { c.out = appendBulk(c.out, args[1]) }

func (c *conn) selectDB(args [][]byte) {
	switch db, err := strconv.Atoi(string(args[1])); {
	case err != nil:
		c.out = appendError(c.out, "ERR", "value is not an integer or out of range")
	case db != 0:
		c.out = appendError(c.out, "ERR", "DB index is out of range: there is 0 alone")
	default:
		c.ok()
	}
}

func (c *conn) doReset([][]byte) {
	c.reset()
	c.out = appendSimple(c.out, "RESET")
}

func (c *conn) doQuit([][]byte) {
	c.ok()
	c.quit = true
}

// auth answers AUTH token and AUTH user token. The user is not looked at: the token
// says who it is. A node that asks for none takes any.
func (c *conn) auth(args [][]byte) {
	if c.login(args[len(args)-1]) {
		c.ok()
	}
}

// login makes the caller the one whom a token belongs to, or answers that it is
// nobody's and leaves the caller who it was.
func (c *conn) login(token []byte) bool {
	if !c.s.cfg.Guard.NeedsToken() {
		return true
	}
	with := c.creds
	with.Token = string(token)
	caller, nobody := c.s.identify(with)
	if nobody != nil {
		_ = c.s.node.Refused(nobody)
		c.out = appendRefusal(c.out, "WRONGPASS", nobody)
		return false
	}
	c.caller, c.nobody = caller, nil
	return true
}

// hello answers HELLO. Nothing changes unless all of it is right.
func (c *conn) hello(args [][]byte) {
	proto := c.proto
	if len(args) > 1 {
		v, err := strconv.Atoi(string(args[1]))
		switch {
		case err != nil:
			c.out = appendError(c.out, "ERR", "Protocol version is not an integer or out of range")
			return
		case v != 2 && v != 3:
			c.out = appendError(c.out, "NOPROTO", "unsupported protocol version: 2 or 3")
			return
		}
		proto = v
	}
	var token, name []byte
	for i := 2; i < len(args); {
		switch {
		case fold(args[i], "AUTH") && i+2 < len(args):
			token = args[i+2]
			i += 3
		case fold(args[i], "SETNAME") && i+1 < len(args):
			name = args[i+1]
			i += 2
		default:
			c.out = appendError(c.out, "ERR", fmt.Sprintf("Syntax error in HELLO option '%.64s'", args[i]))
			return
		}
	}
	if name != nil && !validName(name) {
		c.out = appendError(c.out, "ERR", badName)
		return
	}
	if token != nil && !c.login(token) {
		return
	}
	if c.nobody != nil {
		c.out = appendError(c.out, "NOAUTH", "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <token> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	c.proto = proto
	if name != nil {
		c.name = string(name)
	}
	c.out = appendMap(c.out, 7, c.proto)
	for _, kv := range [][2]string{{"server", "allocator"}, {"version", redisVersion}} {
		c.out = appendBulk(appendBulk(c.out, kv[0]), kv[1])
	}
	c.out = appendInt(appendBulk(c.out, "proto"), int64(c.proto))
	c.out = appendInt(appendBulk(c.out, "id"), c.id)
	for _, kv := range [][2]string{{"mode", "standalone"}, {"role", "master"}} {
		c.out = appendBulk(appendBulk(c.out, kv[0]), kv[1])
	}
	c.out = appendArray(appendBulk(c.out, "modules"), 0)
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

// client answers what clients say of themselves. Settings that could not be kept,
// such as tracking, are refused; clients expect that from older servers.
func (c *conn) client(args [][]byte) {
	sub, rest := strings.ToUpper(string(args[1])), args[2:]
	words := func(n int) bool {
		if len(rest) == n {
			return true
		}
		c.out = appendError(c.out, "ERR", "wrong number of arguments for 'client|"+strings.ToLower(sub)+"' command")
		return false
	}
	switch sub {
	case "ID":
		if words(0) {
			c.out = appendInt(c.out, c.id)
		}
	case "GETNAME":
		if !words(0) {
			return
		}
		if c.name == "" {
			c.out = appendNull(c.out, c.proto)
			return
		}
		c.out = appendBulk(c.out, c.name)
	case "SETNAME":
		if !words(1) {
			return
		}
		if !validName(rest[0]) {
			c.out = appendError(c.out, "ERR", badName)
			return
		}
		c.name = string(rest[0])
		c.ok()
	case "SETINFO": // the library's name and version: nobody asks for them
		if words(2) {
			c.ok()
		}
	case "INFO", "LIST": // the list of connections is for operators, not for clients
		c.out = appendBulk(c.out, fmt.Sprintf("id=%d addr=%s laddr=%s name=%s db=0 resp=%d\n",
			c.id, c.nc.RemoteAddr(), c.nc.LocalAddr(), c.name, c.proto))
	case "NO-EVICT", "NO-TOUCH":
		if words(1) {
			c.ok()
		}
	case "REPLY":
		if len(rest) == 1 && fold(rest[0], "ON") {
			c.ok()
			return
		}
		c.out = appendError(c.out, "ERR", "CLIENT REPLY is ON always: an ID that nobody hears of is lost")
	case "TRACKING":
		if len(rest) == 1 && fold(rest[0], "OFF") {
			c.ok()
			return
		}
		c.out = appendError(c.out, "ERR", "CLIENT TRACKING is OFF always: nothing here may be cached")
	default:
		c.out = appendError(c.out, "ERR", fmt.Sprintf("unknown subcommand '%.64s'. Try CLIENT ID, INFO, GETNAME, SETNAME, SETINFO.", args[1]))
	}
}

// command answers COMMAND, which redis-cli and some clients ask for at the start.
func (c *conn) command(args [][]byte) {
	if len(args) == 1 {
		c.out = appendArray(c.out, len(listed))
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
	case fold(args[1], "COUNT"):
		c.out = appendInt(c.out, int64(len(listed)))
	case fold(args[1], "LIST"):
		c.out = appendArray(c.out, len(listed))
		for _, cmd := range listed {
			c.out = appendBulk(c.out, cmd.lower)
		}
	case fold(args[1], "INFO"):
		c.out = appendArray(c.out, len(chosen))
		for _, cmd := range chosen {
			if cmd == nil {
				c.out = appendNull(c.out, c.proto)
				continue
			}
			c.describe(cmd)
		}
	case fold(args[1], "DOCS"):
		known := chosen[:0:0]
		for _, cmd := range chosen {
			if cmd != nil {
				known = append(known, cmd)
			}
		}
		c.out = appendMap(c.out, len(known), c.proto)
		for _, cmd := range known {
			c.out = appendMap(appendBulk(c.out, cmd.lower), 3, c.proto)
			for _, kv := range [][2]string{{"summary", cmd.use}, {"since", redisVersion}, {"group", "connection"}} {
				c.out = appendBulk(appendBulk(c.out, kv[0]), kv[1])
			}
		}
	default:
		c.out = appendError(c.out, "ERR", fmt.Sprintf("unknown subcommand '%.64s'. Try COMMAND COUNT, DOCS, INFO, LIST.", args[1]))
	}
}

// describe appends what COMMAND tells of a command: name, number of words (at least
// that many, if negative), flags, and the places of keys.
func (c *conn) describe(cmd *command) {
	arity, key := int64(cmd.least), int64(0)
	if cmd.most != cmd.least {
		arity = -arity
	}
	if cmd.keyed {
		key = 1
	}
	c.out = appendArray(c.out, 6)
	c.out = appendBulk(c.out, cmd.lower)
	c.out = appendInt(c.out, arity)
	flags := []string{"fast"}
	if cmd.surface == server.RESPIDs {
		flags = []string{"write", "fast"} // so that no client asks a replica
	}
	c.out = appendArray(c.out, len(flags))
	for _, f := range flags {
		c.out = appendSimple(c.out, f)
	}
	for range 3 {
		c.out = appendInt(c.out, key)
	}
}

// info answers INFO: what clients look for in it to see whether a server is ready,
// and to those who may read, how the node stands.
func (c *conn) info([][]byte) {
	st := c.s.node.Stats()
	sid, refusing := "-1", ""
	if st.Holding {
		sid = strconv.Itoa(int(st.SID))
	}
	if r := c.s.node.Ready(); r != nil {
		refusing = string(r.Reason)
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
	c.out = appendBulk(c.out, b.String())
}
