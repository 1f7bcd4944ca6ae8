// Package driver embeds the sources of the Java program that runs Redisson's locks, semaphores and
// latches on command. They are embedded so that importers of this package can build the program.
package driver

import "embed"

// Sources is the Maven project: pom.xml and src.
//
//go:embed pom.xml src
var Sources embed.FS
