// Package scale measures how the cost of redlatch grows with locks, waiters, clients and shards,
// and compares it with a model.
//
// The model is a handful of constants: what one renewal, one poll, one hand-off and so on cost the
// server and the client. They are measured first, at small sizes. The checks then measure large
// sizes, and divide each figure by what the constants predict.
//
// Times are processor times, of the server by INFO and of this process by getrusage. So other
// programs on the machine disturb them less than they disturb throughput.
package scale
