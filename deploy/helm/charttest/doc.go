// Package charttest holds the checks of the Helm chart that need no cluster and
// no tool: it renders the chart through Helm's own library, reads the objects as
// the API server would, judges pods by the Pod Security level "restricted", and
// lets the node's own configuration read what the chart writes.
//
// It is a module of its own, so that what these need is not what the product
// needs. The rest, with the programs that people use, is «make chart-test».
package charttest
