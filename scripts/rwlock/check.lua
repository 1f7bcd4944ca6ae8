-- rwlock/check: ask whether a reader is alive.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  what the keys of readers' holds begin with
-- ARGV[1]  owner id
-- returns  1 or 0
return life(KEYS[2], ARGV[1], redis.call('hget', KEYS[1], ARGV[1])) > 0 and 1 or 0
