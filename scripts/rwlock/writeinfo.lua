-- rwlock/writeinfo: tell who writes.
-- uses     readers
-- KEYS[1]  lock hash
-- returns  {the hash's pttl}; if somebody writes {pttl, id, count, pttl}
local writer, left = writer_of(KEYS[1]), redis.call('pttl', KEYS[1])
if not writer then
  return {left}
end
return {left, writer, tonumber(redis.call('hget', KEYS[1], writer .. ':write')), left}
