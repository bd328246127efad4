// Command composetest puts the containers of deploy/compose.yaml through what can
// happen to containers, while clients draw IDs and write down what they are given.
//
//	composetest run --images bin/image      on the machine that has Docker
//	composetest load --addr …               in a container beside the others
//
// Run needs Docker's command line and Compose. It uses the daemon that answers
// there, or, as root, starts one of its own in network and mount namespaces of its
// own, so that no bridge and no rule of a firewall is left on the machine. Images
// are those of «make image»: none is pulled. It kills, pauses and disconnects nodes
// and etcd members, replaces each node by another version, and checks the record of
// all calls: no ID twice, and the IDs of each node and of each sid rising. What it
// makes it removes again. Where Docker is missing it says so and has run nothing.
package main
