// Package access decides which client may ask a node for what, and how often:
// bearer tokens with scopes, and a rate for each client.
//
// It knows no protocol and reads no file. The listeners (gRPC, HTTP, RESP) pass
// Credentials. A *Guard identifies the client and decides whether the call is
// allowed. The listeners turn its errors into the refusals UNAUTHENTICATED,
// PERMISSION_DENIED and RATE_LIMITED. All of it comes before the node is called, so a
// refused call has changed nothing (I7).
//
// A nil *Guard is a node without a token file and without a limit. It allows every call,
// except those with scope Admin by callers on other machines.
//
// Tokens are stored as SHA-256, without salt and without a slow hash. Those protect
// secrets that can be guessed; a token has 130 random bits (see NewToken), and its hash
// is computed for every request.
package access
