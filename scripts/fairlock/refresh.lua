-- fairlock/refresh: one sign of life for all waiters of a client, and one look for all of them.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a client's own, or that of one of Redisson's that waits, is this one, a colon and the id
-- KEYS[3]  unused
-- KEYS[4]  queue
-- KEYS[5]  deadlines
-- KEYS[6]  ours
-- KEYS[7]  signs of life
-- ARGV[1]  client
-- ARGV[2]  publish command
-- ARGV[3]  how long its most patient waiter may be silent, ms
-- ARGV[4..]  ids that should be waiting
-- returns  {pttl, who holds, or "", the next owner or "", how long it is given, ms, 1 if it is this client's, how many wait, those of the ids that do not, ...}
local at = now()
-- The first write is one that a full Redis allows.
local keep = 2 * math.max(60000, 2 * ARGV[3])
redis.call('pexpire', KEYS[6], keep)
redis.call('pexpire', KEYS[7], keep)
redis.call('hset', KEYS[7], ARGV[1], at)
redis.call('pexpire', KEYS[7], keep)
local first, given, client = head(at)
if first and redis.call('exists', KEYS[1]) == 0 then
  pass(ARGV[2], true)
  first, given, client = head(at)
else
  mark(at, false)
end
local holder = redis.call('hkeys', KEYS[1])[1]
local answer = {
  redis.call('pttl', KEYS[1]), holder or '', first or '', given or 0, client == ARGV[1] and 1 or 0, redis.call('llen', KEYS[4]),
}
for i = 4, #ARGV do
  if not redis.call('zscore', KEYS[5], ARGV[i]) then
    answer[#answer + 1] = ARGV[i]
  end
end
return answer
