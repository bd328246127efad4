module github.com/microsoft/go-mssqldb

go 1.26.0
