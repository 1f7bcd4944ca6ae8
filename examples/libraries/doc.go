// Package libraries shows locks in the jobs, handlers and migrations of other libraries, about ten
// lines each. Tests run them with the libraries themselves.
package libraries
