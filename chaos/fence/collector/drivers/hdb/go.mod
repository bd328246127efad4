module github.com/SAP/go-hdb

go 1.26.0
