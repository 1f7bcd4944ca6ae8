package redisson

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/interop/driver"
)

func TestHashOfCoversNamesAndContents(t *testing.T) {
	hash := func(files fstest.MapFS) string {
		h, err := hashOf(files)
		require.NoError(t, err)
		return h
	}
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	base := hash(fstest.MapFS{"pom.xml": file("a"), "src/A.java": file("b")})
	tests := []struct {
		name  string
		files fstest.MapFS
		same  bool
	}{
		{"same", fstest.MapFS{"pom.xml": file("a"), "src/A.java": file("b")}, true},
		{"content", fstest.MapFS{"pom.xml": file("a"), "src/A.java": file("c")}, false},
		{"name", fstest.MapFS{"pom.xml": file("a"), "src/B.java": file("b")}, false},
		{"moved between files", fstest.MapFS{"pom.xml": file("ab"), "src/A.java": file("")}, false},
		{"additional file", fstest.MapFS{"pom.xml": file("a"), "src/A.java": file("b"), "src/B.java": file("")}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.same, base == hash(tt.files)) })
	}
}

func TestSourcesAreEmbedded(t *testing.T) {
	require.NoError(t, fstest.TestFS(driver.Sources,
		"pom.xml", "src/main/java/redlatch/interop/Main.java", "src/main/resources/simplelogger.properties"))
}

// The error is ErrMissing, which makes tests skip.
func TestBuildWithoutMavenIsMissing(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache)
	t.Setenv("PATH", t.TempDir())
	_, err := build(t.Context(), Redisson4)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "mvn")
	_, err = Open(t.Context(), Options{})
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "java")
}
