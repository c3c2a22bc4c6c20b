// Package sqltest tests drivers/sqllock on servers. Only this module requires
// the clients of the databases.
package sqltest
