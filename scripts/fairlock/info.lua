-- fairlock/info: the holder of the lock, and its waiters.
-- KEYS[1]  lock hash
-- KEYS[2]  queue
-- returns  {pttl, {field, value, ...}, {waiting id, ...}}
return {
  redis.call('pttl', KEYS[1]), redis.call('hgetall', KEYS[1]), redis.call('lrange', KEYS[2], 0, -1),
}
