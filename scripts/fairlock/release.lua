-- fairlock/release: end a private acquisition: its hold, or its place in the queue.
-- The next owner gets the lock. A key of another type beside the lock hash does not keep the hold.
--
-- An owner id that has nothing will never have anything again, unless a copy of its acquisition is
-- still under way: the memory then makes that copy acquire nothing. Without a memory, a copy of
-- this script finds nothing, and its answer is that nothing was held. The client knows whether it
-- has sent a copy, and then looks for a grant that the lost answer may have named.
-- uses     fairlock/queue, fairlock/hand_off
-- KEYS[1..2]  lock_hash, channel: see fair_lock in fairlock/queue
-- KEYS[3]     memory_key (optional): of this release, for late copies of the acquisition: 0 not
--             held, 1 released, or the answer that named the next holder
-- KEYS[4..8]  shared_counts, queue, deadlines, waiters, clients
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- ARGV[3]  memory_ttl_ms (ms): 0 when no copy of the acquisition can come; KEYS[3] is not used
--          then
-- ARGV[4]  client (text): an id that is new after each restart
-- returns  fair_released: 0 when it was not held; else 1, or, if a waiter of the same client holds
--          the lock now, its id, the time at which it joined the queue, and the ttl
local lock = fair_lock(KEYS)
local owner, publish, memory_ttl_ms, client = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local remembers = memory_ttl_ms ~= '0'

-- Faults are errors of Redis: a key beside the lock hash has another type.
local fault, second_fault

-- hand_over ends the hold, and hands the lock off. It returns nil if the lock was not held.
local function hand_over()
  -- The owner is the only field: Redis deletes the hash with it.
  local held = redis.pcall('hdel', lock.hash, owner)
  if held ~= 1 then
    fault = fault or type(held) == 'table' and held
    return nil
  end
  local grant_text
  grant_text, second_fault = try_call(hand_off, lock, publish, false, client)
  if remembers then
    redis.call('set', lock.memory, grant_text or '1', 'px', memory_ttl_ms)
  end
  return fault or second_fault or grant_text or 1
end

-- The usual case needs no function of the libraries below.
local is_usual = redis.pcall('hexists', lock.shared_counts, owner) == 0
local answer = is_usual and hand_over()
if answer then
  return answer
end

-- uses     lib/extend, lib/shared_counts

if not is_usual then
  local shared
  shared, fault = shared_count(lock.shared_counts, owner, math.huge)
  local private = true -- no acquisition with WithOwner holds the lock by this id
  if shared > 0 then
    local count = tonumber(try_call(redis.call, 'hget', lock.hash, owner) or 0)
    private = count == 0
    if count > shared then
      -- The first write is one that a full Redis allows.
      redis.call('pexpire', lock.shared_counts, redis.call('pttl', lock.shared_counts) + 1)
      redis.call('hset', lock.hash, owner, shared)
      if remembers then
        redis.call('set', lock.memory, 1, 'px', memory_ttl_ms)
      end
      return 1
    end
  end
  answer = private and hand_over()
  if answer then
    return answer
  end
end
local memory = remembers and redis.call('get', lock.memory)
if not memory or memory == 'rests' then -- see lock/shorten
  if remembers then
    redis.call('del', lock.memory)
    redis.call('set', lock.memory, 0, 'px', memory_ttl_ms)
  end
  second_fault = leave_queue(lock, owner, publish)
  return fault or second_fault or 0
end
-- A copy of this request.
local successor, ttl_ms = string.match(memory, '^(%S+) %S+ (%d+)$')
if not successor then
  return tonumber(memory)
end
if redis.call('hexists', lock.hash, successor) == 0 then
  return 1
end
-- The successor counts its lease from when the answered copy was sent.
extend(lock.hash, ttl_ms)
return memory
