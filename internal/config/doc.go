// Package config holds the settings of a node: defaults and their reasons, where
// values come from, and the rules they must keep.
//
// A value comes from the first of these that gives one: a flag, an ALLOCATOR_
// variable, the YAML file, the default. A key that does not exist is an error
// wherever it stands, with the closest one that does: a misspelled setting must
// not be taken for its default. Variables that Kubernetes injects for a Service
// called allocator (ALLOCATOR_PORT and its like) are ignored.
//
// No other package reads the environment.
package config
