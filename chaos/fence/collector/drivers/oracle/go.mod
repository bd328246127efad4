module github.com/sijms/go-ora/v2

go 1.26.0
