// Package collector reads the view of a fence with the SQL query receiver of the
// OpenTelemetry Collector, which nobody here wrote.
package collector
