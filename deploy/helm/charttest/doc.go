// Package charttest holds the checks of the Helm chart that need no cluster and no
// program: it renders the chart with Helm's library, decodes the objects as the API
// server does, checks pods against the Pod Security level "restricted", and loads the
// settings that the chart writes with the node's own configuration package.
//
// Checks with Helm and other programs are in `make chart`.
package charttest
