module github.com/snowflakedb/gosnowflake

go 1.26.0
