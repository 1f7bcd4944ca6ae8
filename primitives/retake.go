package primitives

type retake struct{}

func (r *retake) stop() {}

func (b *bundle) retakeLater() {}
