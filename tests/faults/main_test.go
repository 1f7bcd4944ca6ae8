package faults

import (
	"testing"

	"github.com/redlatch/redlatch/internal/test/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }
