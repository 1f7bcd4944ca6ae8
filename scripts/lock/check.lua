-- lock/check: ask whether the lock is still the owner's.
-- KEYS[1]  lock hash
-- ARGV[1]  owner id
-- returns  1 or 0
return redis.call('hexists', KEYS[1], ARGV[1])
