// Package measure turns what was counted into figures: order statistics, fairness, the commands that clients sent, processor time and memory.
package measure

import (
	"cmp"
	"slices"
)

// Number is what statistics are made of.
type Number interface {
	~int64 | ~float64
}

// Spread is a median with the extremes beside it.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf returns the spread of values, the zero Spread if there are none.
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

// Percentile returns the smallest of sorted that at least p percent of them do not exceed, 0 if there are none. p is above 0 and at most 100.
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

// Jain is Jain's index of fairness: 1 when all have the same share, 1/n when one of n has it all. It is 1 when there is nothing to share.
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

// Groups sums each n neighbours of values.
func Groups[N Number](values []N, n int) []N {
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

// Quotient is a/b, and 0 when b is 0.
func Quotient[A, B Number](a A, b B) float64 {
	if cmp.Compare(b, 0) == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
