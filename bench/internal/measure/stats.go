// Package measure computes figures from raw counts: order statistics, fairness, commands sent by
// clients, processor time and memory.
package measure

import (
	"cmp"
	"slices"
)

// Number is the type of a sample.
type Number interface {
	~int64 | ~float64
}

// Spread is a median with its minimum and maximum.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf returns the spread of values, or the zero Spread if there are none.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return Spread{median, sorted[0], sorted[len(sorted)-1]}
}

// Percentile returns the nearest-rank percentile: the smallest value such that at least p percent
// of sorted are less than or equal to it. It returns 0 if sorted is empty. p is in (0, 100].
func Percentile[N Number](sorted []N, p float64) N {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(float64(len(sorted)) * p / 100)
	if float64(rank) < float64(len(sorted))*p/100 {
		rank++
	}
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Jain returns Jain's fairness index: 1 if all shares are equal, 1/n if all but one of n shares are
// zero. It returns 1 if all shares are zero.
func Jain[N Number](shares []N) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// GroupSums returns the sums of consecutive groups of n values. The last group may be smaller.
func GroupSums[N Number](values []N, n int) []N {
	var sums []N
	for group := range slices.Chunk(values, max(n, 1)) {
		var sum N
		for _, v := range group {
			sum += v
		}
		sums = append(sums, sum)
	}
	return sums
}

// Quotient returns a/b, or 0 if b is 0.
func Quotient[A, B Number](a A, b B) float64 {
	if cmp.Compare(b, 0) == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
