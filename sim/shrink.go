package main

import (
	"context"
	"errors"
	"io"
)

func shrink(context.Context, *guest, options, io.Writer) (int, error) {
	return 0, errors.ErrUnsupported
}
