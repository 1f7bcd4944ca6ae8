// Package driver embeds the sources of the Java program that runs Redisson's locks, semaphores and latches on command. They travel
// with the package, so that whoever imports it can build them.
package driver

import "embed"

// Sources is the Maven project: pom.xml and src.
//
//go:embed pom.xml src
var Sources embed.FS
