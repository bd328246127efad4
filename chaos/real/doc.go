// Command chaos runs real clusters, injects real faults into them, and checks the
// claims of docs/DESIGN.md on their answers.
//
//	chaos run [--for 60s] [--fault NAME]… [--seed S] [--nodes N] [--dir D] [--schedule FILE]
//	chaos soak [--for 8h]
//	chaos verify DIR
//	chaos list
//
// The allocator processes are the unmodified release build, started as an operator
// starts them; etcd is three processes of the real server. Packages: rig is the
// cluster, record its clients, nemesis the faults; clockhook and netswitch change
// clocks and network, operator reads and edits records in etcd, and chaos/history
// checks.
//
// Exit codes: 0 everything passed, 1 a claim does not hold or the cluster does not start,
// 2 wrong usage, 3 the run proves nothing. chaos/README.md has the faults and their results.
package main
