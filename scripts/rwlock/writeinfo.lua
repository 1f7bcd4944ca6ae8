-- rwlock/writeinfo: who writes.
-- uses     readers
-- KEYS[1]  lock hash
-- returns  {id, count, pttl}, or {} when nobody does
local writer = writer_of(KEYS[1])
if not writer then
  return {}
end
return {writer, tonumber(redis.call('hget', KEYS[1], writer .. ':write')), redis.call('pttl', KEYS[1])}
