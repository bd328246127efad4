package server

// IsHTTP reports whether a connection that begins with these bytes, three or more, begins with a request of HTTP/1.1.
func IsHTTP(first []byte) bool {
	switch string(first[:3]) {
	case "GET", "HEA", "POS", "PUT", "DEL", "OPT", "PAT", "CON":
		return true
	}
	return false
}

// NotHTTP returns the answer to an HTTP request at another port, such as "the gRPC port (listen.grpc)".
// The connection has to be closed after the answer.
func NotHTTP(port string) []byte {
	return []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n" +
		"Connection: close\r\n\r\nThis is " + port + ". Send HTTP to listen.http, which has port 8080 by default.\n")
}
