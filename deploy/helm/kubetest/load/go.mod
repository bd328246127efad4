// What draws IDs in a cluster while the chart is upgraded: the project's own client,
// in a module of its own, for the cluster's is bound to the versions of Kubernetes.
module github.com/flakelease/allocator/deploy/helm/kubetest/load

go 1.26.0

require github.com/flakelease/allocator v0.0.0

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/flakelease/allocator => ../../../..
