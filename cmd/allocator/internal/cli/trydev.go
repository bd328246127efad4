package cli

// TryDev is how to start a cluster for a trial.
const TryDev = `run "allocator dev"`
