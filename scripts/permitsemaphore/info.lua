-- permitsemaphore/info: read how many permits are free, and who holds the others.
-- It collects no expired leases.
-- uses     lib/clock, lib/number, lib/primary
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel: no key has its name
-- KEYS[3]  not used
-- KEYS[4]  leases
-- returns  {now number, free number, held (id text, ends_at text)...}: now, ms; free permits,
--          including those whose leases have expired; each held permit, and the time at which its
--          lease ends, ms
local permits_key, channel, leases = KEYS[1], KEYS[2], KEYS[4]

prefer_primary(channel)
local now, free = now_ms(), read_number(permits_key)
if not free then
  redis.call('zcard', leases) -- fails for a key of another type
  return {now, 0}
end
local answer = redis.call('zrangebyscore', leases, '(' .. now, '+inf', 'withscores')
table.insert(answer, 1, now)
table.insert(answer, 2, free + redis.call('zcount', leases, '-inf', now))
return answer
