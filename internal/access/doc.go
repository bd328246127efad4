// Package access decides who may ask a node for what, and how often: bearer
// tokens with scopes, and a rate for each client.
//
// It knows no wire and reads no file. The doors (gRPC, HTTP, RESP) say who calls,
// as Credentials; a *Guard says who that is and whether the call is let through;
// the doors turn its errors into the refusals UNAUTHENTICATED, PERMISSION_DENIED
// and RATE_LIMITED. All of it comes before a node is asked, so that a call turned
// away has changed nothing (I7).
//
// A nil *Guard lets everybody do everything, which is a node without a token file
// and without a limit.
//
// Tokens are kept as SHA-256 and nothing slower. A token has 130 random bits (see
// NewToken), so there is no list of likely ones to try, which is all that salt
// and a slow hash protect from; and this one is computed for every request.
package access
