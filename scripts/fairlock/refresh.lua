-- fairlock/refresh: one heartbeat for all waiters of a client, and one look at the queue for them.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a client's or a waiter's own channel is this one, a colon and its id
-- KEYS[3]  unused
-- KEYS[4]  unused
-- KEYS[5]  queue
-- KEYS[6]  deadlines
-- KEYS[7]  our waiters
-- KEYS[8]  heartbeats
-- ARGV[1]  client: an id of this life of it
-- ARGV[2]  publish command
-- ARGV[3]  the longest timeout of its waiters, ms
-- ARGV[4..]  ids that should be waiting
-- returns  {pttl, holder or "", next owner or "", how long that has to take the lock, ms, 1 if it is
--          this client's, how many wait, those of the ids that do not, ...}
local at = now()
-- A key of another type fails here, before it gets a TTL.
redis.call('hlen', KEYS[7])
redis.call('hlen', KEYS[8])
-- The first write is one that a full Redis allows.
local keep = 2 * math.max(60000, 2 * ARGV[3])
redis.call('pexpire', KEYS[7], keep)
redis.call('pexpire', KEYS[8], keep)
redis.call('hset', KEYS[8], ARGV[1], at)
redis.call('pexpire', KEYS[8], keep)
local first, given, client = head(at)
if first and redis.call('exists', KEYS[1]) == 0 then
  pass(ARGV[2], true)
  first, given, client = head(at)
else
  restamp(at, false)
end
local holder = redis.call('hkeys', KEYS[1])[1]
local answer = {
  redis.call('pttl', KEYS[1]), holder or '', first or '', given or 0, client == ARGV[1] and 1 or 0,
  redis.call('llen', KEYS[5]),
}
for i = 4, #ARGV do
  if not redis.call('zscore', KEYS[6], ARGV[i]) then
    answer[#answer + 1] = ARGV[i]
  end
end
return answer
