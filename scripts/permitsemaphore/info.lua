-- permitsemaphore/info: how many permits are free, and who has the others. It collects nothing.
-- uses     count, permits
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  no memory
-- KEYS[4]  leases
-- returns  {now, ms; permits free, those whose leases have ended among them; id, ms at which its lease ends, of each that is held}
local at, free = now(), count(KEYS[1])
if not free then
  redis.call('zcard', KEYS[4])
  return {at, 0}
end
local answer = redis.call('zrangebyscore', KEYS[4], '(' .. at, '+inf', 'withscores')
table.insert(answer, 1, at)
table.insert(answer, 2, free + redis.call('zcount', KEYS[4], '-inf', at))
return answer
