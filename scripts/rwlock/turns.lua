-- rwlock/turns: clients that wait for the lock come in turn, near and far ones.
--
-- All of them hear each release, and whoever tries first gets a free lock. Without turns that would
-- always be the nearest client. So two sorted sets note the clients that wait, one for readers and
-- one for writers, each with the time of its first attempt:
--
--   - A writer's release begins a turn of the readers that were noted before it. Writers claim the
--     lock at once, so that later readers wait, but the claim does not keep these readers out.
--   - When they have come and gone, or if there are none, the first writer has its turn: the claim
--     then names its client.
--
-- A client that does not come delays the others by turn_ms. The notes are a help, not the truth: if
-- they are lost or cannot be written, clients compete as without turns.
-- uses     lib/clock
-- defines  note_waiting(noted, client);
--          waiting_readers(readers, turn): when the readers' turn began, if some have not come yet,
--          and how long it lasts, ms; else nil;
--          is_turn_of(readers, client, began): whether it is the turn of that client's readers;
--          named_writer(claim_key): the client whose turn it is, nil if it is not a writer's;
--          name_writer(writers, claim_key): begin a writer's turn, if one waits;
--          begin_turn(readers, turn): begin the readers' turn, after a writer's release; false if
--          none wait

local turn_ms = 85 -- a client with a round trip of 80 ms is in time
local patience_ms = 20 -- writers compete before; that costs less than to wait for a certain one
local notes_ttl_ms = 3000

local function note_waiting(noted, client)
  local now = now_ms()
  local added = redis.pcall('zadd', noted, 'nx', now, client)
  if type(added) ~= 'number' then
    return -- a full Redis, or a key of another type
  end
  if added == 0 and tonumber(redis.call('zscore', noted, client)) > now then
    redis.call('zadd', noted, now, client) -- the clock was set back
  end
  redis.call('pexpire', noted, notes_ttl_ms)
end

local function waiting_readers(readers, turn)
  local began, now = tonumber(redis.pcall('get', turn)), now_ms()
  if not began or began > now or began + turn_ms <= now then
    return nil
  end
  local waiting = redis.pcall('zcount', readers, '-inf', began)
  if type(waiting) == 'number' and waiting > 0 then
    return began, began + turn_ms - now
  end
end

local function is_turn_of(readers, client, began)
  local noted = tonumber(redis.pcall('zscore', readers, client))
  return noted ~= nil and noted <= began
end

local function named_writer(claim_key)
  return string.match(redis.call('get', claim_key) or '', '^turn (.+)$')
end

local function name_writer(writers, claim_key)
  local client = redis.pcall('zrangebyscore', writers, '-inf', now_ms() - patience_ms, 'limit', 0, 1)[1]
  if client and type(redis.pcall('get', claim_key)) ~= 'table' then
    redis.call('zrem', writers, client)
    redis.pcall('set', claim_key, 'turn ' .. client, 'px', turn_ms)
  end
end

local function begin_turn(readers, turn)
  local last = tonumber(redis.pcall('get', turn))
  if last then -- they have not come in their last turn
    redis.pcall('zremrangebyscore', readers, '-inf', last)
  end
  local begins = redis.call('exists', readers) == 1 and type(redis.pcall('get', turn)) ~= 'table'
  if begins then
    redis.pcall('set', turn, string.format('%.0f', now_ms()), 'px', notes_ttl_ms)
  end
  return begins
end
