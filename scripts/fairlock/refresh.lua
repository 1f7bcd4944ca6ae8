-- fairlock/refresh: one heartbeat for all waiters of a client, and one look at the queue for them.
-- uses     lib/clock, lib/holder, fairlock/queue, fairlock/hand_off
-- KEYS[1..2]  lock_hash, channel: see fair_lock in fairlock/queue
-- KEYS[3]     not used
-- KEYS[4..8]  shared_counts, queue, deadlines, waiters, clients
-- ARGV[1]  client (text): an id that is new after each restart
-- ARGV[2]  publish (command)
-- ARGV[3]  longest_timeout (ms): of its waiters
-- ARGV[4..]  ids (text): that should be in the queue
-- returns  {pttl number, holder text, next text, next_left number, next_is_ours flag, waiting
--            number, missing (id text)...}:
--          the holder or "";
--          the next owner or "", how many ms it has left to acquire the lock, and whether it
--            belongs to this client;
--          the length of the queue;
--          which of the ids are missing from the queue, or count as Redisson's there
local lock = fair_lock(KEYS)
local client, publish, longest_timeout, all_args = ARGV[1], ARGV[2], ARGV[3], ARGV

-- A key of another program fails here, before anything is written.
local holder, foreign_data = holder_of(lock.hash)
if foreign_data then
  return foreign_data
end
redis.call('llen', lock.queue)
redis.call('zcard', lock.deadlines)
redis.call('hlen', lock.waiters)
redis.call('hlen', lock.clients)

local now, rules = now_ms(), queue_rules()
-- The first write is one that a full Redis allows.
local keep_ms = 2 * math.max(60000, 2 * longest_timeout)
redis.call('pexpire', lock.waiters, keep_ms)
redis.call('pexpire', lock.clients, keep_ms)
redis.call('hset', lock.clients, client, now)
redis.call('pexpire', lock.clients, keep_ms)
-- The rest deletes the hash of clients if no redlatch waiter is left: do not write it after that.
rules.forget_clients(lock, now, holder)
local head, head_left, head_client = rules.live_head(lock, now)
if head and redis.call('exists', lock.hash) == 0 then
  -- The lock expired, or the message to the head was lost.
  hand_off(lock, publish, true)
  head, head_left, head_client = rules.live_head(lock, now)
else
  rules.update_scores(lock, now, false)
end
holder = holder_of(lock.hash) -- perhaps another one, after hand_off
local answer = {
  redis.call('pttl', lock.hash), holder or '', head or '', head_left or 0,
  head_client == client and 1 or 0, redis.call('llen', lock.queue),
}
-- The queue may have outlasted the hash of waiters, which has a TTL: the server's clock jumped
-- ahead, or the server was down for minutes. Then nobody is granted the lock, and the waiters hear
-- no message. An attempt makes a waiter's entry again.
local mixed = rules.is_mixed(lock)
for i = 4, #all_args do
  local id = all_args[i]
  if not redis.call('zscore', lock.deadlines, id)
    or mixed and redis.call('hexists', lock.waiters, id) == 0 then
    answer[#answer + 1] = id
  end
end
return answer
