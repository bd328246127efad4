// Command chaos runs real clusters, makes real faults happen to them, and checks
// the claims of docs/DESIGN.md on what they answered.
//
//	chaos run [--for 60s] [--fault NAME]… [--seed S] [--nodes N] [--dir D] [--schedule FILE]
//	chaos soak [--for 8h]
//	chaos verify DIR
//	chaos table DIR… [--write FILE]
//	chaos list
//
// The allocator processes are the release build, unmodified, started as an
// operator would; etcd is the real server, three processes of it. Nothing in them
// knows that it is being tested. Packages: rig is the cluster, record its clients,
// nemesis the faults; clockhook and netswitch are the instruments, operator is
// etcd by hand, and chaos/history judges.
//
// It ends with 0 if everything passed, 1 if a claim does not hold, 2 for bad
// usage, and 3 if the run could not tell. README.md has the faults and what is
// expected of each.
package main
