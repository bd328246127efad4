// Command composetest tests the containers of deploy/compose.yaml under faults and
// through an upgrade, while clients request IDs and record the answers.
//
//	composetest run --images bin/image      on the machine that has Docker
//	composetest load --addr …               in a container beside the others
//
// Run needs Docker's command line and Compose. It uses a running Docker daemon, or,
// as root, starts one in network and mount namespaces of its own, so that no bridge
// and no firewall rule is left on the machine. Images are those of `make image`:
// none is pulled. It kills, pauses and disconnects nodes, which have etcd inside, replaces
// each node by another version and by its own again, and checks the history of all requests: no ID is
// returned twice, and the IDs of each node and of each sid rise. It removes what it
// creates. Without Docker it reports that nothing was tested.
package main
