package client

import "context"

// NewNamed is New with the addresses of names.
func NewNamed(o Options, lookup func(context.Context, string) ([]string, error)) (*Client, error) {
	return newClient(o, lookup)
}

// StreamTo returns the address of the node that c's stream is to; "": there is none.
func StreamTo(c *Client) string {
	c.coalesce.mu.Lock()
	defer c.coalesce.mu.Unlock()
	if c.coalesce.cur == nil {
		return ""
	}
	return c.coalesce.cur.e.Addr
}

// LimitPrefetch makes n the largest block that c prefetches. It is called before the first call of c.
func LimitPrefetch(c *Client, n int) {
	if c.prefetch != nil {
		c.prefetch.limit, c.prefetch.size = n, n
	}
}
