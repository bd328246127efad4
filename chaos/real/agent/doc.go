// Package agent tests the agent with short-lived programs: PHP-FPM, gunicorn with processes of
// its own and redis-cli draw IDs from its socket, while it is stopped and killed and nodes are killed
// and paused. No ID may come twice, no program may see an error that a retry hides, and IDs of one
// run of the agent rise.
//
// It tests, and gives nothing to import.
package agent
