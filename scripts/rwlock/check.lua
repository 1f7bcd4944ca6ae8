-- rwlock/check: ask whether a reader is alive.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  key of its first hold: while a slot moves, a reader that has moved in part gets TRYAGAIN, and does not look dead
-- ARGV[1]  owner id
-- returns  1 or 0
return life(prefix_of(KEYS[1]), ARGV[1], redis.call('hget', KEYS[1], ARGV[1])) > 0 and 1 or 0
